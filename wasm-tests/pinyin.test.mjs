// The shipped Chinese to pinyin model on phrases it was not trained on: what check.mjs beside it measures, on a few of them.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { load } from '../dist/node.js';
import { isHeldOut, measure, polyphones, report } from '../examples/models/pinyin/check.mjs';

// Readings as @pinyin-pro/data 1.3.1 (ISC) gives them, mistakes included: the 60 held-out phrases with the smallest SHA-256 that have
// none of the eight polyphones, and the 60 that have one.
const plain = parse(`
  推进设备 tuī jìn shè bèi; 大屯山 dà tún shān; 化成灰 huà chéng huī; 滇越铁路 diān yuè tiě lù; 直落 zhí luò; 科研经费 kē yán jīng fèi;
  另接 lìng jiē; 西伯卒 xī bó zú; 狂花 kuáng huā; 支出额 zhī chū é; 冷丝丝 lěng sī sī; 戒心 jiè xīn; 李鸿基 lǐ hóng jī;
  横拖倒拽 héng tuō dǎo zhuài; 空间频率 kōng jiān pín lǜ; 美眉图 měi méi tú; 纤悉不遗 xiān xī bù yí; 凌霄之志 líng xiāo zhī zhì;
  休伦湖 xiū lún hú; 美洲葡萄 měi zhōu pú tao; 稚小 zhì xiǎo; 服下去 fú xià qù; 水桷 shuǐ jué; 金锡勋 jīn xī xūn; 为尊者讳 wèi zūn zhě huì;
  关保儿 guān bǎo er; 达奇 dá qí; 系列赛 xì liè sài; 波瓣 bō bàn; 活罪难逃 huó zuì nán táo; 霍城县 huò chéng xiàn; 先富起来 xiān fù qǐ lái;
  那知客 nà zhī kè; 拼缀出 pīn zhuì chū; 生石灰 shēng shí huī; 哈尔格萨 hā ěr gé sà; 探过 tàn guò; 蠹居棋处 dù jū qí chù; 白纱帘 bái shā lián;
  连为一体 lián wéi yì tǐ; 布鲁诺 bù lǔ nuò; 保国 bǎo guó; 感人事迹 gǎn rén shì jì; 脱臭剂 tuō chòu jì; 词人 cí rén; 每项 měi xiàng;
  乘龙配凤 chéng lóng pèi fèng; 联系业务 lián xì yè wù; 碧水青山 bì shuǐ qīng shān; 冈底斯山脉 gāng dǐ sī shān mài; 羊马 yáng mǎ;
  拉普兰 lā pǔ lán; 雅各宾派 yǎ gè bīn pài; 莫猎骄 mò liè jiāo; 嚎天喊地 háo tiān hǎn dì; 南伸延 nán shēn yán; 罗萨尔 luó sà ěr;
  皇甫阁 huáng fǔ gé; 下坡路 xià pō lù; 美标 měi biāo`);
const several = parse(`
  白长老 bái zhǎng lǎo; 长白山天池 cháng bái shān tiān chí; 首都钢铁公司 shǒu dū gāng tiě gōng sī; 犯得着 fàn de zháo;
  流流行性 liú liú xíng xìng; 中国音乐著作权协会 zhōng guó yīn yuè zhù zuò quán xié huì; 故计重施 gù jì chóng shī; 清乐 qīng lè;
  早借早还 zǎo jiè zǎo huán; 行善积德 xíng shàn jī dé; 衣不重彩 yī bú zhòng cǎi; 郑而重 zhèng ér zhòng; 宋江行 sòng jiāng xíng;
  长远打算 cháng yuǎn dǎ suàn; 无限生长 wú xiàn shēng zhǎng; 赚疯了 zhuàn fēng le; 隔行如隔山 gé háng rú gé shān; 平行力系 píng xíng lì xì;
  全部都是 quán bù dōu shì; 听得见 tīng de jiàn; 行健 xíng jiàn; 盲目乐观 máng mù lè guān; 秋山行旅 qiū shān xíng lǚ; 娱乐版 yú lè bǎn;
  重登 chóng dēng; 须长发 xū cháng fà; 那柄长 nà bǐng cháng; 神领意得 shén lǐng yì dé; 双重身份 shuāng chóng shēn fèn;
  自行决定 zì xíng jué dìng; 说长道短 shuō cháng dào duǎn; 流行榜 liú xíng bǎng; 催化重整 cuī huà chóng zhěng; 以血还血 yǐ xuè hái xuè;
  窘得 jiǒng dé; 长钓 cháng diào; 逐行 zhú háng; 侧面偏重 cè miàn piān zhòng; 重叠 chóng dié; 重码 zhòng mǎ; 乐行忧违 lè xíng yōu wéi;
  蹑足而行 niè zú ér xíng; 予以重创 yǔ yǐ zhòng chuāng; 行不行 xíng bu xíng; 丑行 chǒu xíng; 平行面 píng xíng miàn; 贴贴乐 tiē tiē lè;
  还魂 huán hún; 貌合行离 mào hé xíng lí; 改道行驶 gǎi dào héng shǐ; 既得利益 jì dé lì yì; 洗得 xǐ dé; 沉得住 chén de zhù;
  规行矩步 guī xíng jǔ bù; 德行 dé xíng; 都译成 dōu yì chéng; 与世长辞 yǔ shì cháng cí; 自重自爱 zì zhòng zì ài; 好景不长 hǎo jǐng bù cháng;
  赢得荣誉 yíng dé róng yù`);

/** `[phrase, syllables]` of each. */
function parse(list) {
  return list.split(';').map((item) => {
    const [phrase, ...syllables] = item.trim().split(' ');
    return [phrase, syllables];
  });
}

let lm;
before(async () => {
  lm = await load(fileURLToPath(new URL('../examples/models/pinyin/', import.meta.url)));
});
after(() => lm.dispose());

test('the lists are what they say', () => {
  for (const [phrase, syllables] of [...plain, ...several]) {
    assert.ok(isHeldOut(phrase), phrase);
    assert.equal([...phrase].length, syllables.length, phrase);
  }
  assert.ok(several.every(([phrase]) => [...phrase].some((character) => polyphones.includes(character))));
});

test('unseen phrases: syllables right and aligned', async () => {
  const found = await measure(lm, plain);
  assert.ok(found.right >= 0.97 * found.syllables, `${report(found)}\n${found.missed.join('\n')}`);
  assert.ok(found.aligned >= 0.95 * found.syllables, report(found));
});

test('unseen phrases: the polyphones', async () => {
  const found = await measure(lm, several);
  assert.ok(found.polyphonesRight >= 0.9 * found.polyphones, `${report(found)}\n${found.missed.join('\n')}`);
  assert.ok(found.aligned >= 0.95 * found.syllables, report(found));
});

test('sentences are separated by a space, as pinyin does, whatever ends them', async () => {
  const { text, segments } = await lm.translate('你好。再见！');
  assert.equal(text, 'nǐ hǎo 。 zài jiàn ！');
  assert.deepEqual(
    segments.map(({ target }) => text.slice(...target)),
    ['nǐ hǎo 。', 'zài jiàn ！'],
  );
});

test('what is not Chinese stands for itself, what is unknown is <unk>, white space is nothing', async () => {
  const { text } = await lm.generate('银行，A 7？\n龘好').result;
  assert.equal(text, 'yín háng ， A 7 ？ <unk> hǎo');
});
